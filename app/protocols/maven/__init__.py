"""Maven's repository layout 2, for mvn, Gradle, sbt, Ivy and coursier."""
