"""The forms a trained model is given away in: adapter, merged, quantised, GGUF; one file a form."""
