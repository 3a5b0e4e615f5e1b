"""The kinds of cache that are validated: K and V, or one MLA latent. One module each, named as in the spec.

A kind is one object that appends, reads, attends and dequantises; proofs, phases and times use it and know no more.
"""
