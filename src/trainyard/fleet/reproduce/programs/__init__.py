"""What the programs of papers' authors print for their own inputs, beside ours."""
