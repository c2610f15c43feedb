"""What a password costs in tests, where thousands are asked about: nothing to speak of. How they are hashed is tested by itself."""

CHEAP = {"ARKVORY_PASSWORD_HASH_KIB": "32"}
