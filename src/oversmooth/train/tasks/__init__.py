"""What is trained on what: a model, its data, and how it is judged; one folder each."""
