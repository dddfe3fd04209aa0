"""ElasticFlow: its policy, the shares that it reserves, and the program that its authors published."""
