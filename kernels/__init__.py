"""Pruning and sparse attention: tensors in, tensors out; torch and triton only.

Import this folder as `hipcli.kernels`, never as `kernels`, which names another package.

Dimension letters, the same in every file:

    T   keys so far                     H   query heads
    Q   queries of a call               KV  key/value heads
    NB  query blocks of a call          G   query heads per key/value head (H = KV * G)
    BQ  queries per block               D   head dimension
    C   candidate chunks of a stage     R   query rows compared with a chunk
    N   keys an attention reads         L   keys per chunk of a stage
"""
