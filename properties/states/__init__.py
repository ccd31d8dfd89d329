"""Laws that encoders and decoders share: each has an id in both roles."""
