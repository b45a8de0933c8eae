# Rscript flexmix.R TABLE.csv COMPONENTS: the best of 20 starts of flexmix (Gruen and Leisch, 2008),
# counts that are Poisson in a cluster.
suppressMessages(library(flexmix))
words <- commandArgs(trailingOnly = TRUE)
components <- as.integer(words[2])
counts <- as.matrix(read.csv(words[1], check.names = FALSE))
set.seed(1)
control <- list(minprior = 0, tol = 1e-12, iter.max = 20000)
fits <- replicate(20, flexmix(counts ~ 1, k = components, model = FLXMCmvpois(), control = control))
fit <- fits[[which.max(sapply(fits, logLik))]]
rates <- matrix(parameters(fit), ncol = components)
line <- function(quantity, cluster, value)
  cat(sprintf('"%s",%s,%s,\n', quantity, cluster, format(value, digits = 12)), sep = "")
line("version", "", as.character(packageVersion("flexmix")))
line("log likelihood", "", as.numeric(logLik(fit)))
for (k in seq_len(components)) {
  line("weight", k, prior(fit)[k])
  for (i in seq_len(ncol(counts))) line(paste("rate", colnames(counts)[i]), k, rates[i, k])
}
