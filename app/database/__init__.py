"""PostgreSQL: tables, engines and their pools, the order of locks, migrations, the embedded server."""
