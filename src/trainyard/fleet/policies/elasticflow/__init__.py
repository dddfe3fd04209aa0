"""ElasticFlow: its policy, and the shares that it reserves."""
