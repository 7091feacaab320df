"""How a person decides: what is asked, what a decision is bound to, what a grant covers."""
