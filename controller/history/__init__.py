"""What a recorded run tells a person."""
