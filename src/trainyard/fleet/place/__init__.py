"""Which free devices a job gets, where its policy does not say."""
