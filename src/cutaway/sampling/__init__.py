"""Logits in, token ids out: edits, cuts and the draw. No text and no model here."""
