"""Programs of authors, repeated decision by decision: evidence that what is built here can say what they do."""
