"""The role `multi_head_attention`: a module of (d_model, num_heads) that is given its weights, and held to them.

conventions: the declaration. cases: what is drawn. projections: where a module keeps its weights. masks: the
shapes in which it takes a mask. oracle: the exact answer. bounds, units: what rounding explains. weighted,
subject: what laws call. finding: the conventions that a module shows by itself. role: what the engine asks.
"""
