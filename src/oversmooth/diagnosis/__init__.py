"""How a diagnosis is made (`diagnose`), and the public result (`result`)."""
