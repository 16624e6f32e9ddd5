"""Messages to tokens and back: by chat templates, or by code of the user."""
