skip_if_not(reticulate::py_module_available("silomix"), "Python's silomix is not installed")

set.seed(1)
rows <- 600
group <- rep(0:1, each = rows / 2)
people <- data.frame(
  hospital = rep(c("north", "south", "west"), rows / 3),
  smoker = factor(ifelse(runif(rows) < c(.1, .9)[group + 1], "yes", "no"), c("no", "yes", "never asked")),
  stage = ifelse(runif(rows) < c(.8, .2)[group + 1], "I", "II"),
  treated = runif(rows) < c(.1, .8)[group + 1],
  age = rnorm(rows, c(40, 70)[group + 1], 5),
  visits = rpois(rows, c(2, 12)[group + 1]),
  patient = sprintf("P%03d", 1:rows),
  admitted = as.Date("2024-01-01") + seq_len(rows),
  status = ifelse(runif(rows) < c(.1, .4)[group + 1], "died", "alive")
)
people$smoker[1:20] <- NA
people$stage[21:40] <- NA
people$treated[41:60] <- NA
people$age[61:80] <- NA
people$age[81:90] <- -9
people$status[91:100] <- NA
fit <- silomix_fit(people, silo = "hospital", id = "patient", exclude = c("admitted", "status"),
                   na_values = c(age = -9), kinds = c(visits = "poisson"), components = 6,
                   iterations = 2000, seed = 1)

test_that("the planted clusters are found, whatever the class of a column", {
  expect_s3_class(fit, "silomix_fit")
  expect_equal(nrow(fit$clusters), 2)
  expect_gt(max(table(fit$labels, group)[1, ]) / sum(fit$labels == "0"), .97)
  ages <- subset(fit$profiles, variable == "age" & level_name == "mean")
  expect_equal(sort(ages$mean), c(40, 70), tolerance = .05)
})

test_that("missing cells are missing, and declared levels are known", {
  expect_setequal(subset(fit$profiles, variable == "stage")$level_name, c("I", "II"))
  expect_true("never asked" %in% fit$profiles$level_name)
})

test_that("it can be printed, summed up and drawn", {
  expect_output(print(fit), "2 clusters in 3 silos")
  expect_output(print(summary(fit)), "smoker = yes")
  file <- tempfile(fileext = ".pdf")
  grDevices::pdf(file)
  expect_invisible(plot(fit))
  expect_invisible(plot(fit, type = "sizes"))
  grDevices::dev.off()
  expect_gt(file.size(file), 3000)
})

test_that("names of any length leave room for the drawing", {
  long <- strrep("a name that does not end, ", 20)
  wordy <- people[c("hospital", "stage", "age")]
  names(wordy)[2:3] <- paste(c("stage", "age"), long)
  wordy[[2]] <- paste(wordy[[2]], long)
  found <- silomix_fit(wordy, silo = "hospital", components = 3, iterations = 200, seed = 1)
  names <- as.list(paste(seq_len(nrow(found$clusters)), long))
  names(names) <- seq_along(names) - 1
  found <- silomix_load(found$posterior$with_names(names), silo = "hospital")
  for (size in c(3, 7)) {
    grDevices::pdf(NULL, width = size, height = size)
    for (type in c("profiles", "sizes")) expect_silent(plot(found, type = type))
    grDevices::dev.off()
  }
  expect_equal(shorten(c("no name", paste(long, "= level")), 15), c("no name", "a name... level"))
})

test_that("rows are predicted as they were labelled", {
  probability <- predict(fit, people, type = "prob")
  expect_equal(rowSums(probability), rep(1, rows), tolerance = 1e-6)
  expect_gt(mean(predict(fit, people) == fit$labels), .99)
  expect_equal(nrow(predict(fit, people[7, ], type = "prob")), 1)
})

test_that("a saved posterior is the same", {
  path <- tempfile(fileext = ".silomix")
  fit$posterior$save(path)
  again <- silomix_load(path, silo = "hospital")
  expect_equal(again$clusters, fit$clusters)
  expect_equal(predict(again, people[1:5, ]), predict(fit, people[1:5, ]))
  saveRDS(fit, path)
  expect_error(predict(readRDS(path), people[1:5, ]), "silomix_load")
})

test_that("draws keep their chains and their names", {
  skip_if_not_installed("posterior")
  draws <- posterior::as_draws(fit)
  expect_gt(posterior::nchains(draws), 1)
  means <- colMeans(posterior::as_draws_matrix(draws))
  expect_equal(unname(means[c("weights[0]", "weights[1]")]), fit$clusters$mean, tolerance = 1e-5)
  named <- with(fit$profiles, paste0("profiles[", cluster, ",", variable, "=", level_name, "]"))
  expect_equal(unname(means[named]), fit$profiles$mean, tolerance = 1e-5)
  found <- posterior::summarise_draws(draws, "rhat", "ess_bulk")[1:2, ]
  expect_true(all(found$rhat < 1.05 & found$ess_bulk > 300))
})

test_that("frames of Python's become data frames, with their names, types and missing cells", {
  labels <- silomix_frame(fit$posterior$labels_frame(probabilities = TRUE))
  types <- c(row = "integer", id = "character", silo = "character", cluster = "integer",
             probability = "double", second = "integer", p0 = "double", p1 = "double")
  expect_equal(vapply(labels, typeof, ""), types)
  expect_equal(labels$id, people$patient)
  expect_equal(as.character(labels$cluster), as.character(fit$labels))
  cells <- list(text = list("NA", NULL), yes = list(NULL, TRUE), none = list(NULL, NULL),
                number = list(1e-30, NaN), `a, b` = list(Inf, 1))
  expected <- data.frame(text = c("NA", NA), yes = c(NA, TRUE), none = NA, number = c(1e-30, NA),
                         `a, b` = c(Inf, 1), check.names = FALSE)
  made <- reticulate::import("pandas", convert = FALSE)$DataFrame(cells)
  expect_identical(silomix_frame(made), expected)
  expect_identical(silomix_frame(expected), expected)
  expect_named(silomix_frame(made$head(0L)), names(expected))
})

test_that("clusters are compared in other columns, whose missing cells are left out", {
  died <- silomix_outside(fit, people, c(status = "died"))
  old <- as.character(subset(fit$profiles, variable == "age" & mean > 60)$cluster)
  expect_equal(died$estimate[died$cluster == old], .4, tolerance = .2)
  expect_equal(sum(died$rows), rows - 10)
  odds <- silomix_outside(fit, people, "status", type = "odds", level = .9)
  expect_equal(odds$level_name, c(NA, "died"))
  expect_equal(odds$interval, rep("90% CI", 2))
})

test_that("names of clusters stand everywhere", {
  named <- silomix_load(fit$posterior$with_names(list("1" = "old")), silo = "hospital")
  called <- c("0", "1: old")
  expect_equal(levels(named$labels), called)
  expect_equal(colnames(predict(named, people[1:2, ], type = "prob")), called)
  expect_output(print(summary(named)), "1: old")
  expect_equal(silomix_frame(named$posterior$contrast(cluster = "1"))$name[1], "old")
})

test_that("what cannot be used is refused in words", {
  expect_error(silomix_fit(as.matrix(people)), "data frame")
  expect_error(silomix_fit(people, silo = "hospital", id = "patient"), "'admitted' has dates")
  expect_error(silomix_fit(people[2:4], components = "many"), "components")
  expect_error(silomix_fit(cbind(people, age = 1)), "two columns are named 'age'")
  wide <- people
  wide$both <- cbind(1:rows, 1:rows)
  expect_error(silomix_fit(wide), "'both' is a matrix")
})
