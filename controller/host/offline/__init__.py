"""What is done beside runs, without one."""
