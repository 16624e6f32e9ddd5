"""What a program gives to a Controller: looked at before anything starts."""
