"""How the controller's own process and machine are: beside the run, and never a reason for a decision."""
