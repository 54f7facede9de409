"""What people look at: tables in the terminal, charts in files and one page, from results alone."""
