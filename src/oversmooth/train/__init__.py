"""Training from scratch: `engine` runs it, whatever it is; `tasks` say what is trained on what."""
