"""What people look at: tables in the terminal and charts in files, from results alone."""
