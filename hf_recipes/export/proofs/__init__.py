"""What shows that a merged model is right: by its tensors, and by what it says."""
