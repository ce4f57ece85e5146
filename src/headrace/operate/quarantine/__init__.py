"""Invalid rows listed, and sent again when their cause is gone."""
