"""What a diagnosis holds: typed, saved and loaded (`data`), and what it says in words (`verdict`)."""
