"""TurboTransformers: requests of alike lengths share batches, and tensors share memory when they live at other times.

References
----------
J. Fang et al., "TurboTransformers: An Efficient GPU Serving System For Transformer Models", PPoPP 2021 (arXiv
2010.05680). Algorithms 1 and 2: where the tensors of a request lie in memory (`allocator`). Algorithm 3: which requests
share a batch (`batching`).

Fidelity: simplified. The strategy is the hungry one. Left out: the lazy one, which waits for more requests until a time
is over, as policies are asked only when a step ends or a request comes; the cache of responses; and the kernels.
"""
