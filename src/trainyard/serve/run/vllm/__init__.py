"""vLLM as the engine, in an environment of its own, driven by batch policies."""
