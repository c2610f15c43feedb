"""What is spoken with an upstream: its description, requests and answers, when to leave it alone, what is known of local copies."""
