"""Who may look at runs in a browser, and what listens for them."""
