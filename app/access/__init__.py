"""Who is asking, and what they may do: users, tokens, groups, rules and the decision."""
