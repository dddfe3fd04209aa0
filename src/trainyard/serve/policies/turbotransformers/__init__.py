"""TurboTransformers: requests of similar lengths share batches; tensors that live at different times share memory.

References
----------
J. Fang et al., "TurboTransformers: An Efficient GPU Serving System For Transformer Models", PPoPP 2021 (arXiv
2010.05680). Algorithms 1 and 2: where the tensors of a request lie in memory (`allocator`). Algorithm 3: which requests
share a batch (`batching`).

Fidelity: simplified. The strategy is the hungry one. Left out: the lazy strategy, which waits for more requests until a
timeout (here a policy is asked only when a step ends or a request arrives); the cache of responses; and the kernels.
"""
