"""Where molecules come from, how they are kept, and how they are batched."""
