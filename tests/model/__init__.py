"""Every interleaving of small cases, explored on the gateway's own decisions (docs/model.md)."""
