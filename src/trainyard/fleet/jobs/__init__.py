"""What is known of jobs: one table with a row each, and what follows from it."""
