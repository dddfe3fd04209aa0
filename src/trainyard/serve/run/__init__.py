"""The PyTorch engine of serving: what computes batches for real."""
