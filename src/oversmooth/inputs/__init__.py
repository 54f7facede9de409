"""What a model is run on: batches of pictures or of tokens, from the user's data or made here.

Importing this imports no image, parquet or model library; each is borrowed when data needs it.
"""
