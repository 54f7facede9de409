"""Fine-tuning masked language models on tasks of GLUE and SuperGLUE."""
