"""Many engines behind one service: who answers, and what happens when one of them ends."""
