"""What files and variables tell of this machine."""
