"""What the attacks on the guarantees found: results that runs wrote, and the tables that are made of them."""
