# What the programs that sample have in common: what does not depend on how clusters are numbered,
# its mean over the draws, and the Monte Carlo standard error of that mean.

CHAINS <- 4
BATCHES <- 20  # of each chain
words <- commandArgs(trailingOnly = TRUE)
components <- as.integer(words[2])

# weights: (draw, component); densities: (row, component), log p(row | component) of a draw
invariants <- function(weights, densities) {
  rows <- NULL
  values <- sapply(seq_len(nrow(weights)), function(draw) {
    joint <- sweep(densities(draw), 2, log(weights[draw, ]), "+")
    top <- apply(joint, 1, max)
    totals <- top + log(rowSums(exp(joint - top)))
    shares <- exp(joint - totals)
    if (is.null(rows)) rows <<- round(seq(1, nrow(joint), length.out = 5))
    together <- shares[rows, ] %*% t(shares[rows, ])
    c(sum(totals), max(weights[draw, ]), sum(weights[draw, ]^2), together[upper.tri(together)])
  })
  pairs <- which(upper.tri(diag(5)), arr.ind = TRUE)
  rownames(values) <- c("mean log likelihood", "largest weight", "sum of squared weights",
                        paste("rows", rows[pairs[, 1]], "and", rows[pairs[, 2]], "together"))
  t(values)
}

# chains: a list of (draw, quantity) matrices, all of one size
report <- function(version, chains) {
  batches <- do.call(rbind, lapply(chains, function(chain) {
    batch <- rep(seq_len(BATCHES), each = nrow(chain) %/% BATCHES)
    rowsum(chain[seq_along(batch), , drop = FALSE], batch) / (nrow(chain) %/% BATCHES)
  }))
  cat(sprintf('"version",,%s,\n', version))
  errors <- apply(batches, 2, sd) / sqrt(nrow(batches))
  cat(sprintf('"%s",,%.12g,%.4g\n', colnames(batches), colMeans(batches), errors), sep = "")
}

# the level of each cell, from 1, of a table of categories, and how many levels each variable has
codes_of <- function(file) {
  table <- read.csv(file, colClasses = "character", na.strings = "", check.names = FALSE)
  sapply(table, function(column) match(column, sort(unique(column), method = "radix")))
}

