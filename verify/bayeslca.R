# Rscript bayeslca.R TABLE.csv CLASSES: the Gibbs sampler of BayesLCA (White and Murphy, 2014), for
# variables with two levels, under silomix's prior: Dirichlet(0.5) weights and Beta(0.5) profiles.
suppressMessages(library(BayesLCA))
source(file.path(dirname(sub("--file=", "", grep("--file=", commandArgs(), value = TRUE))),
                 "posterior.R"))
DRAWS <- 2000
x <- codes_of(words[1]) - 1
chains <- lapply(seq_len(CHAINS), function(seed) {
  set.seed(seed)
  fit <- blca.gibbs(x, components, alpha = 0.5, beta = 0.5, delta = 0.5, iter = DRAWS,
                    burn.in = 500, relabel = FALSE, verbose = FALSE)
  profiles <- fit$samples$itemprob
  invariants(fit$samples$classprob, function(draw) {
    p <- matrix(profiles[draw, , ], components)
    x %*% t(log(p)) + (1 - x) %*% t(log(1 - p))
  })
})
report(packageVersion("BayesLCA"), chains)
