"""Health of the controller's own process and machine, on which no decision depends."""
