"""Language models, causal and masked."""
