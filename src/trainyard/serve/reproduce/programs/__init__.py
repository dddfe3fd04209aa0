"""What the programs of papers' authors put out for their own inputs, beside ours."""
