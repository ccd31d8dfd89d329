"""Laws of an attention function: f(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)."""
