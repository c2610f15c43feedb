"""What several processes agree on: who owns the storage, who is there, what each has to hear, who runs what, what nobody may delete."""
