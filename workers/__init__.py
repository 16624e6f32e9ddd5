"""What does the work: processes of every role. Nothing here decides or imports controller."""
