"""Operations that several decisions share: each changes the state and tells the workers; none chooses."""
