"""Training on small images: the model, data, augmentation, corruptions. Importing oversmooth never imports this."""
